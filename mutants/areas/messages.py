"""Rejections whose message does not say what is wrong."""

from kernel import Kernel, Refused
from registry import mutant


@mutant(Kernel.refuse, kind="message")
def says_error(kernel, message):
    """Every rejection says 'error' and nothing more."""
    raise Refused("error")


@mutant(Kernel.refuse, kind="message")
def says_nothing(kernel, message):
    """Every rejection has an empty message."""
    raise Refused("")


@mutant(Kernel.refuse, kind="message")
def says_where_it_stands_in_the_code(kernel, message):
    """Every rejection names a line of code instead of the error."""
    raise Refused("CHECK failed at attention_helper.cc:217: status == kOk")
