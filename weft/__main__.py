"""The command `weft`, also as `python -m weft`."""

import signal
import threading


def main() -> None:
    """Runs the command line. Ctrl-C while it is still being imported ends the process without a traceback."""
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread:
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from weft.cli import main as run

    if main_thread:
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
