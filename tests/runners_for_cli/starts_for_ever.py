"""Never gets to describing itself, and does not see the end of its input."""

import time

time.sleep(600)
