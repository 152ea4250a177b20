"""Kills a runner after the death of the process that started it.

A runner exits when its input ends, unless it hangs at that moment. Only this process would kill it
then, and it may have been killed itself. So a shell waits beside each runner: what it reads ends
with a line where this process still lives, and without one where it does not.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import Final

_SCRIPT: Final = 'read -r released || kill -s KILL -- "-$1"'


class LastWill:
    """The death of the process group ``group``, if this process dies before `revoke`."""

    def __init__(self, group: int) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no shell, or no more processes: the runner has to do without
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", str(group)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
            )

    def revoke(self) -> None:
        """End the shell. Called once the group is dead, and its number may be another's."""
        if self._shell is not None:
            with suppress(OSError):
                self._shell.communicate(b"\n")
