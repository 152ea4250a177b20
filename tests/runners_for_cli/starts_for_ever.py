"""Never describes itself, and ignores the end of its input."""

import time

time.sleep(600)
