"""The ways in which programs call a model: what each needs, its calls, and its words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from conformance.model.calls.program import ROWS, DecoderProgram
from conformance.model.calls.sequences import CallSequence, Conversation
from conformance.model.config.configuration import Configuration

#: Tokens of a long prompt.
_LONG: Final = 130
#: Single tokens after a short prompt.
_STEPS: Final = 26
#: The fewest tokens that a graph must allow, to be called in other ways than one chat.
_FEWEST: Final = 12
#: Tokens beyond a window.
_BEYOND: Final = 10


@dataclass(frozen=True)
class Way:
    """A way of calling.

    ``use`` is its name in tables, and ``words`` follow "right" or "wrong" in a sentence. ``lacks``
    says why a program cannot be called so, "" if it can. ``asked``: the files beside the model say
    that programs call it so. ``rare``: few models can be called so.
    """

    name: str
    use: str
    words: str
    lacks: Callable[[DecoderProgram], str]
    sequences: Callable[[DecoderProgram], Iterator[CallSequence]]
    asked: Callable[[Configuration], bool] = lambda configuration: False
    rare: bool = False


def lacks(way: Way, program: DecoderProgram) -> str:
    """Why a program cannot be called in a way, "" if it can."""
    if program.in_files and way.name not in ("chat", "pipeline"):
        return "the model is a pipeline of files"
    if program.most < _FEWEST and way.name not in ("chat", "window"):
        return f"the graph allows {program.most} tokens"
    return way.lacks(program)


def _chat(program: DecoderProgram) -> Iterator[CallSequence]:
    new, batch, most = program.new, program.batch or 1, program.most
    if program.in_files:
        yield _run(program, [new or 6, 1, 1], batch)
        return
    if program.prompt:
        news = [len(program.prompt), *[1] * (4 if program.cached else 0)]
        yield _run(program, news, batch)
        return
    if not program.cached:
        yield _run(program, [new or min(6, most)], batch)
        if new is None and not program.appends and _long(program) > 6:
            yield _run(program, [_long(program)], batch)
    elif new is None:
        prompt = min(6, max(most - 3, 1))
        steps = max(min(3 if program.skeleton.results else _STEPS, most - prompt), 1)
        yield _run(program, [prompt, *[1] * steps], batch)
        if (long := _long(program)) > 6:
            yield _run(program, [long, 1, 1], batch)
    elif new == 1:
        yield _run(program, [1] * min(max(12, program.window + 4), 40, most), batch)
    else:
        yield _run(program, [new] * max(min(2, most // new), 1), batch)


def _long(program: DecoderProgram) -> int:
    """The tokens of a long prompt, beyond the window if the program allows it."""
    wanted = max(_LONG, program.window + _BEYOND)
    return min(wanted, program.most - 8)


def _run(program: DecoderProgram, news: Sequence[int], batch: int = 1) -> CallSequence:
    conversation = Conversation(program.source, batch)
    for new in news:
        conversation.call(*[new] * batch)
    return conversation.done()


def _chunks(program: DecoderProgram) -> Iterator[CallSequence]:
    yield _run(program, [5, 3, 1], program.batch or 1)
    if 0 < program.window < 64:
        yield _run(program, [program.window + 3, 5, 1], program.batch or 1)


def _padded(left: bool) -> Callable[[DecoderProgram], Iterator[CallSequence]]:
    def sequences(program: DecoderProgram) -> Iterator[CallSequence]:
        conversation = Conversation(program.source, 2, left=left)
        conversation.call(4, 6)
        for _ in range(2 if program.cached else 0):
            conversation.call(1, 1)
        yield conversation.done()

    return sequences


def _zero(program: DecoderProgram) -> Iterator[CallSequence]:
    if "mask" in program.kinds:
        conversation = Conversation(program.source)
        conversation.call(6, hole=True)
        if program.cached:
            conversation.call(1)
        yield conversation.done(" with a zero inside the mask")
    conversation = Conversation(program.source)
    conversation.call(6, token=program.source.padding)
    if program.cached:
        conversation.call(1)
    yield conversation.done(f" with the token of padding, {program.source.padding}, inside")


def _back(program: DecoderProgram) -> Iterator[CallSequence]:
    batch = program.batch or 1
    prompts = [6, *([program.window + 4] if program.window else [])]
    for prompt in prompts:
        conversation = Conversation(program.source, batch)
        for new in (prompt, 1, 1) if program.new is None else [1] * prompt:
            conversation.call(*[new] * batch)
        past = conversation.calls[-1].total - 3
        words = f"one token on a past of {past}, after three were taken back"
        conversation.call(*[1] * batch, back=3, words=words)
        conversation.call(*[1] * batch)
        yield conversation.done()


def _beams(program: DecoderProgram) -> Iterator[CallSequence]:
    conversation = Conversation(program.source, 2)
    conversation.call(6, 6)
    conversation.call(1, 1, order=(1, 0))
    conversation.call(1, 1, order=(0, 0))
    yield conversation.done()


def _shared(program: DecoderProgram) -> Iterator[CallSequence]:
    conversation = Conversation(program.source, program.batch or 1)
    for new in (6, 1, 3, 1):
        conversation.call(*[new] * (program.batch or 1))
    rows = dict.fromkeys(_caches_of_nodes(program), ROWS)
    yield replace(conversation.done(), buffers=rows, share=True)


def _caches_of_nodes(program: DecoderProgram) -> list[str]:
    """The caches that attention nodes take directly, of any number of rows."""
    return [
        past
        for past in program.interface.states
        if program.interface.is_taken_as_past(past)
        if program.skeleton.inputs[past].size(2) is None
    ]


def _window(program: DecoderProgram) -> Iterator[CallSequence]:
    window = program.interface.configuration.slides
    assert window is not None
    rows = {
        name: (window.rows if layer in window.layers else 4 * window.rows)
        for name in program.interface.states
        if (layer := program.interface.layer(name)) is not None
    }
    conversation = Conversation(program.source)
    for new in (6, 1, window.rows, 1, 1):
        conversation.call(new)
    yield replace(conversation.done(), buffers=rows)


def _pipeline(program: DecoderProgram) -> Iterator[CallSequence]:
    new = program.new or 6
    chunks = [new] * max(min(3, (program.most - 3) // new), 1)
    yield _run(program, [*chunks, 1, 1, 1], program.batch or 1)


def _types(program: DecoderProgram) -> Iterator[CallSequence]:
    conversation = Conversation(program.source)
    conversation.call(9, of_type=(2, 3, 4))
    if program.cached:
        conversation.call(1)
        conversation.call(1)
    yield conversation.done()


def _lacks_chunks(program: DecoderProgram) -> str:
    if not program.cached:
        return "the graph takes no cache"
    return "" if program.new is None else f"the graph takes {program.new} tokens at a time"


def _lacks_sequences(program: DecoderProgram) -> str:
    if program.batch is not None:
        number = "one sequence" if program.batch == 1 else f"{program.batch} sequences"
        return f"the graph takes {number}"
    if program.new is not None:
        return f"the graph takes {program.new} tokens at a time"
    if program.counts_chunks:
        return "query_seqlens counts tokens in another way"
    return ""


def _lacks_batch(program: DecoderProgram) -> str:
    if why := _lacks_sequences(program):
        return why
    if {"attention_bias", "seqlens_k"} <= program.given:
        return "the program gives both a bias and lengths"
    return "" if program.tells_padding else "no input can tell what is padding"


def _lacks_left(program: DecoderProgram) -> str:
    why = _lacks_batch(program)
    return why or ("" if "mask" in program.kinds else "the graph has no mask")


def _lacks_zero(program: DecoderProgram) -> str:
    if program.new is not None and program.new < 6:
        return f"the graph takes {program.new} tokens at a time"
    return "" if "ids" in program.kinds or "mask" in program.kinds else "the graph has no tokens"


def _lacks_back(program: DecoderProgram) -> str:
    if program.cached and program.new in (None, 1):
        return ""
    return _lacks_chunks(program)


def _lacks_beams(program: DecoderProgram) -> str:
    return _lacks_sequences(program) or _lacks_chunks(program)


def _lacks_shared(program: DecoderProgram) -> str:
    if why := _lacks_chunks(program):
        return why
    if any(group.form.cache != "growing" for group in program.groups):
        return "the graph itself has its caches in buffers"
    return "" if _caches_of_nodes(program) else "no attention node takes a cache of the program"


def _lacks_window(program: DecoderProgram) -> str:
    slides = program.interface.configuration.slides
    if any(group.form.cache == "window" for group in program.groups):
        return "the graph itself has such caches"
    return "" if slides and program.cached else "no file asks for caches of a window's length"


#: The ways by their names, in the order in which they are told.
WAYS: Final[Mapping[str, Way]] = {
    way.name: way
    for way in (
        Way("chat", "one chat", "in one chat", lambda program: "", _chat, lambda _: True),
        Way("chunks", "chunked prompts", "with chunked prompts", _lacks_chunks, _chunks),
        Way(
            "right",
            "batches",
            "in batches padded at the right",
            _lacks_batch,
            _padded(left=False),
            lambda configuration: configuration.padding_side == "right",
        ),
        Way(
            "left",
            "left-padded batches",
            "in batches padded at the left",
            _lacks_left,
            _padded(left=True),
            lambda configuration: configuration.padding_side == "left",
        ),
        Way("zero", "zeros in the mask", "with zeros inside the mask", _lacks_zero, _zero),
        Way("back", "tokens taken back", "after tokens were taken back", _lacks_back, _back),
        Way("beams", "beams reordered", "with beams reordered", _lacks_beams, _beams),
        Way(
            "shared",
            "one buffer",
            "with past and present in one buffer",
            _lacks_shared,
            _shared,
            lambda configuration: configuration.shared_buffer,
        ),
        Way(
            "window",
            "caches of a window",
            "with caches of a window's length",
            _lacks_window,
            _window,
            lambda configuration: configuration.slides is not None,
            rare=True,
        ),
        Way(
            "pipeline",
            "a pipeline",
            "as a pipeline of files",
            lambda program: "" if program.in_files else "the model is one file",
            _pipeline,
            lambda configuration: bool(configuration.pipeline),
            rare=True,
        ),
        Way(
            "types",
            "token types",
            "with tokens of two types",
            lambda program: "" if "types" in program.kinds else "the graph has no token types",
            _types,
            rare=True,
        ),
    )
}
