"""A hook of mkdocs: links to files outside of docs/, which the site does not have, become their paths."""

import posixpath
import re

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")


def on_page_markdown(markdown, page, **_):
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def without_link(link):
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        return link[1] if path in link[1] else f"{link[1]} (`{path}`)"

    return LINK.sub(without_link, markdown)
