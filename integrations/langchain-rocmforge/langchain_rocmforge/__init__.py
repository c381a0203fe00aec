"""A LangChain chat model that runs GGUF models in process, with rocmforge.

>>> from langchain_rocmforge import ChatRocmForge
>>> model = ChatRocmForge(model="model.gguf", temperature=0.0)
>>> model.invoke("Name a river.").content
"""

from langchain_rocmforge.chat_models import ChatRocmForge

__all__ = ["ChatRocmForge"]
