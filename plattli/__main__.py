"""``python -m plattli`` is the program ``plattli``."""

import sys

from plattli.cli import main

if __name__ == "__main__":
    sys.exit(main())
