"""Refusals that do not say what is wrong."""

from kernel import Kernel, Refused
from registry import mutant


@mutant(Kernel.refuse, kind="message")
def says_error(kernel, message):
    """Every refusal says 'error' and nothing more."""
    raise Refused("error")


@mutant(Kernel.refuse, kind="message")
def says_nothing(kernel, message):
    """Every refusal has an empty message."""
    raise Refused("")


@mutant(Kernel.refuse, kind="message")
def says_where_it_stands_in_the_code(kernel, message):
    """Every refusal names a line of code in place of what is wrong."""
    raise Refused("CHECK failed at attention_helper.cc:217: status == kOk")
