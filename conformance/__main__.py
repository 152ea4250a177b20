"""``python -m conformance`` is the command ``gqa``."""

from conformance.cli.main import main

if __name__ == "__main__":
    main()
