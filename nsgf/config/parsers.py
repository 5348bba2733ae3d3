"""Parsers whose errors are one line in the words of this program."""

import argparse
import re
from typing import NoReturn

from jsonargparse import ArgumentParser

from nsgf.system.errors import UserError


class Parser(ArgumentParser):
    """jsonargparse's parser with errors of one line, raised instead of printed."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(in_our_words(message))


class ControlParser(argparse.ArgumentParser):
    """The same of argparse's own."""

    def error(self, message: str) -> NoReturn:
        raise UserError(in_our_words(message))


def in_our_words(message: str) -> str:
    """A parser's message in the words of this program."""
    text = " ".join(message.split())
    text = re.sub(r"Parser key \"([^\"]+)\": ", r"\1: ", text)
    text = re.sub(r"Expected an? typing\.Literal\[([^\]]*)\]\.", r"must be one of \1.", text)
    text = re.sub(r"Expected an? <class '(\w+)'>\.", r"must be of type \1.", text)
    union = (
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*?\])?(.*?)\] Errors:"
    )
    outer = r"Does not validate against any of the Union subtypes Subtypes: \[typing\.Annotated.*?"
    text = re.sub(outer + "Errors: - ", "", text)
    found = re.search(union + r".* Given value: (.*)", text)
    if found:
        kinds = re.findall(r"<class '(\w+)'>|('\w+')", f"{found[1] or ''}{found[2]}")
        allowed = " or ".join((a or b).replace("NoneType", "null") for a, b in kinds)
        text = f"{text[: found.start()]}must be {allowed}. Got value: {found[3]}"
    unknown = r"Group '([\w.]+)' does not accept option '([\w.]+)'"
    return re.sub(unknown, r"\1.\2: unknown key", text)
