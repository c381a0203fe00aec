"""Conversations in turns, as chat templates take them."""

import time

from rocmforge.server.chat.turns import in_turns


def user(text):
    return {"role": "user", "content": text}


def test_messages_of_one_role_in_a_row_are_one():
    made = in_turns(
        [
            {"role": "system", "content": "a"},
            {"role": "system", "content": "b"},
            user("c"),
            {"role": "system", "content": "d"},
            user([{"type": "text", "text": "e"}]),
            {"role": "assistant", "content": "f"},
            user("g"),
        ]
    )
    texts = [
        [part["text"] for part in each["content"]] if isinstance(each["content"], list) else each["content"]
        for each in made
    ]
    assert [each["role"] for each in made] == ["system", "user", "assistant", "user"]
    assert texts == [["a", "b"], ["c", "d", "e"], "f", "g"]


def test_a_content_of_parts_is_not_changed():
    parts = [{"type": "text", "text": "a"}]
    in_turns([user(parts), user("b")])
    assert parts == [{"type": "text", "text": "a"}]


def test_time_is_linear():
    """H1: ten times the items take about ten times as long, and not a hundred times."""

    def seconds(count):
        messages = [user("a") for _ in range(count)]
        started = time.process_time()
        in_turns(messages)
        return time.process_time() - started

    few = min(seconds(4_000) for _ in range(5))
    assert min(seconds(40_000) for _ in range(3)) < 40 * few
