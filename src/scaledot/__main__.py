"""The command `scaledot`, also as ``python -m scaledot``."""

import signal
import sys
from typing import NoReturn

SHELL = ("typer", "rich", "click")


def _stop(number: int, _: object) -> NoReturn:
    """End as Ctrl-C does, drafts of results removed, with the exit code of shells for signals."""
    sys.exit(128 + number)


def main() -> int:
    """Run the command line and return its exit code; say how to install it where it is missing."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        from scaledot.cli import shell
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in SHELL:
            raise
        sys.stderr.write(
            f"scaledot: the command line needs {missing}, which is not installed: "
            'pip install "scaledot[cli]"\n'
        )
        return 2
    except KeyboardInterrupt:
        return 130
    return shell(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
