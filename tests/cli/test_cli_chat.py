"""`rocmforge chat`: in a pipe, and on a terminal as a person uses it."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pictures import png
from tiny_models import rewritten

LIMIT = 120.0


def process(*arguments, **kwargs):
    """Runs the program, with pipes."""
    command = [sys.executable, "-m", "rocmforge", "chat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def test_chat_answers_line_by_line(smollm2_path):
    lines = "What is the capital of France? One word.\n\n/reset\n/help\nAnd of Japan? One word.\n/exit\nnever\n"
    done = process("-m", smollm2_path, "-n", 16, "--temperature", 0, input=lines)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.strip().splitlines()
    assert "Paris" in first
    assert second
    assert "never" not in done.stdout


def test_an_answer_that_ends_at_once_is_said(smollm2_path, tmp_path):
    """A question that stands there bare is, to this model, the end of a text."""
    template = tmp_path / "bare.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    question = "What is the capital of France?\n"
    options = ("-m", smollm2_path, "-n", 8, "--temperature", 0)
    done = process(*options, "--chat-template", template, input=question)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "the model ended its text at once\n")
    assert process(*options, input=question).stderr == ""


def test_chat_goes_on_after_a_refusal(smollm2_path):
    """A turn that is too long costs that turn alone; nothing was said before that could be forgotten."""
    lines = "word " * 100 + "\nWhat is the capital of France? One word.\n" + "word " * 100 + "\n"
    done = process("-m", smollm2_path, "-n", 8, "--temperature", 0, "--max-model-len", 64, input=lines)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first.startswith("error: prompt length in tokens")
    assert "/clear" not in first
    assert second.endswith("; /clear forgets the conversation")
    assert "Paris" in done.stdout


def test_chat_ends_with_its_input(smollm2_path):
    assert process("-m", smollm2_path, input="").returncode == 0


@pytest.mark.parametrize("word", ["/bye", *(pytest.param(word, marks=pytest.mark.deep) for word in ("/exit", "/quit"))])
def test_words_that_leave(smollm2_path, word):
    done = process("-m", smollm2_path, input=f"{word}\nHello\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_unknown_commands_are_refused_with_the_list(smollm2_path):
    done = process("-m", smollm2_path, input="/sav file\n/stats\n")
    assert done.stdout == ""
    assert done.stderr.startswith("error: /sav file: no such command; there are:\n")
    assert all(command in done.stderr for command in ("/bye", "/exit", "/quit", "/clear", "/reset", "/stats", "/help"))
    assert "nothing was said yet" in done.stderr


def test_the_sampling_the_system_message_and_the_last_answer_can_change(smollm2_path, tmp_path):
    """A greedy answer is repeated, a drawn one is not, and the saved file holds what was said."""
    saved = tmp_path / "a chat.json"
    question = "Name a city."
    lines = [
        "/regenerate",
        "/system Answer with one word.",
        question,
        "/regenerate",
        "/set temperature 40",
        "/set seed=3",
        "/regenerate",
        f"/save '{saved}'",
        f"/save '{saved}'",
        '/system ""',
        "/set",
    ]
    done = process("-m", smollm2_path, "-n", 8, "--temperature", 0, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    first, again, drawn = done.stdout.strip().split("\n", 2)
    assert first == again != drawn
    assert json.loads(saved.read_text()) == [
        {"role": "system", "content": "Answer with one word."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": drawn},
    ]
    notes = done.stderr.splitlines()
    assert notes[:5] == [
        "error: /regenerate: there is no answer yet",
        "system message: Answer with one word.",
        "temperature: 40.0",
        "seed: 3",
        f"3 messages written to {saved}",
    ]
    assert notes[5] == f"error: /save '{saved}': File exists; give the path of a new file"
    assert notes[6] == "system message: none"
    assert {"temperature: 40.0", "seed: 3", "max_tokens: 8"} <= set(notes[7:])


def test_wrong_settings_change_nothing(smollm2_path):
    lines = "/set temprature 1\n/set temperature hot\n/set temperature -1\n/set top_k 1e9\n/save\n/clear all\n/set"
    done = process("-m", smollm2_path, "--temperature", 0.5, input=lines)
    assert (done.returncode, done.stdout) == (0, "")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors[0].startswith("error: /set temprature 1: expected one of temperature, ")
    assert "hot" in errors[1]
    assert "temperature: got -1" in errors[2]
    assert errors[3].startswith("error: /set top_k: ")
    assert errors[4].startswith("error: /save : ")
    assert errors[5].startswith("error: /clear all: no such command")
    assert "temperature: 0.5" in done.stderr.splitlines()


def test_a_path_is_a_message_and_quotes_make_one_of_several_lines(smollm2_path):
    done = process("-m", smollm2_path, "-n", 4, input='/etc/fstab holds what?\n"""one\ntwo\n"""\n/stats\n')
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 2
    assert done.stderr.startswith("turns: 2; ")


def test_images_go_with_the_next_message(vision_model, tmp_path):
    """Another image is seen, one that cannot be read costs nothing, and /clear forgets those that wait."""
    files = [tmp_path / "a.png", tmp_path / "b c.png"]
    for seed, file in enumerate(files):
        file.write_bytes(png(64, 48, seed))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    options = ("-m", vision_model("qwen25vl"), "-n", 6, "--temperature", 0, "-t", 1)
    lines = [f"/image {files[0]}", "hi", "/clear", f"/image '{files[1]}'", "/clear", "hi"]
    done = process(*options, input="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert "a.png (64 x 48 pixels, " in done.stderr
    assert "b c.png (64 x 48 pixels, " in done.stderr
    seen, text = done.stdout.split("\n", 1)
    assert seen != text.strip()
    bad = process(*options, input=f"/image {tmp_path}/none.png\n/image {tmp_path}/bad.png\n/image\n/image '\nhi\n")
    assert bad.returncode == 0
    first, second, third, fourth = bad.stderr.splitlines()
    assert first == f"error: /image {tmp_path}/none.png: No such file or directory; give the path of an image"
    assert second.startswith("error: image: got 10 bytes")
    assert third.startswith("error: /image : Is a directory")
    assert fourth.startswith("error: ")
    assert bad.stdout.strip() == text.strip()
    blind = process(*options, "--mmproj", "none", input=f"/image {files[0]}\nhi\n")
    assert "accepts only text" in blind.stderr
    assert blind.returncode == 0


def test_a_model_without_a_template_says_once_what_helps(tiny_model, tmp_path):
    """A19: nothing that is said to it could be answered."""
    model = rewritten(tiny_model("quant_models/Q4_0"), tmp_path / "bare.gguf", drop=["tokenizer.chat_template"])
    done = process("-m", model, input="a\nb\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "no chat template" in done.stderr
    assert "rocmforge generate" in done.stderr
    template = tmp_path / "template.txt"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    done = process("-m", model, "-n", 2, "--chat-template", template, input="a\n")
    assert (done.returncode, done.stderr) == (0, "")


class Terminal:
    """`rocmforge chat` on a pseudo-terminal."""

    def __init__(self, state, *arguments):
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.environ.update(TERM="xterm", XDG_STATE_HOME=str(state))
            os.execv(sys.executable, [sys.executable, "-m", "rocmforge", "chat", *map(str, arguments)])
        self.unread = b""

    def type(self, text):
        os.write(self.screen, text.encode())

    def read_until(self, text):
        """Returns all that was shown up to `text`."""
        deadline = time.monotonic() + LIMIT
        while text.encode() not in self.unread:
            assert time.monotonic() < deadline, self.unread.decode(errors="replace")
            if select.select([self.screen], [], [], 1)[0]:
                try:
                    self.unread += os.read(self.screen, 1 << 16)
                except OSError:
                    raise AssertionError(self.unread.decode(errors="replace")) from None
        shown, _, self.unread = self.unread.partition(text.encode())
        return shown.decode(errors="replace")

    def wait_until_it_reads(self):
        """The prompt is shown a moment before keys are read, and CPython's reader of lines misses a signal that comes
        between the two. A program that waits for keys sleeps in one and the same system call."""
        deadline = time.monotonic() + LIMIT
        call = Path(f"/proc/{self.process}/syscall")
        before, now = None, call.read_text()
        while now != before or now.startswith("running"):
            assert time.monotonic() < deadline, now
            time.sleep(0.1)
            before, now = now, call.read_text()

    def interrupt_prompt(self):
        self.wait_until_it_reads()
        self.type("\x03")

    def exit_code(self):
        """Reads what is left, so that the program does not wait for us."""
        try:
            while os.read(self.screen, 1 << 16):
                pass
        except OSError:
            pass
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_a_person_on_a_terminal(smollm2_path, tmp_path):
    """Editing, a paste of two lines, Ctrl-C in an answer and at the prompt, and a history that outlives the program."""
    # A text that is drawn nearly at random goes on until it is stopped, on every device.
    randomly = ("--temperature", 100, "--top-p", 1, "--min-p", 0, "--repetition-penalty", 1)
    chat = Terminal(tmp_path, "-m", smollm2_path, "-n", 8000, "--seed", 1, *randomly)
    chat.read_until("/help lists the commands")
    chat.read_until("> ")
    chat.type("\x1b[200~Count to one million,\none by one.\x1b[201~\r")
    # The question itself has no such letter.
    chat.read_until("a")
    chat.type("\x03")
    # The statistics of what there was of it.
    chat.read_until("tok/s; ")
    chat.read_until("> ")
    chat.type("/statz\x7fs\r")
    assert "turns: 1; " in chat.read_until("tokens generated")
    chat.read_until("> ")
    chat.interrupt_prompt()
    chat.read_until("(Ctrl-C once more")
    chat.read_until("> ")
    chat.type("/stats\r")
    # The conversation is still there.
    assert "turns: 1; " in chat.read_until("tokens generated")
    chat.read_until("> ")
    chat.type("\x04")
    assert chat.exit_code() == 0
    history = tmp_path / "rocmforge" / "chat_history"
    assert history.read_text().splitlines() == ["Count to one million,", "one by one.", "/stats"]
    assert history.stat().st_mode & 0o077 == 0

    again = Terminal(tmp_path, "-m", smollm2_path)
    again.read_until("> ")
    # Up: what was typed last time.
    again.type("\x1b[A\r")
    again.read_until("nothing was said yet")
    again.read_until("> ")
    again.interrupt_prompt()
    again.read_until("> ")
    again.interrupt_prompt()
    assert again.exit_code() == 130
