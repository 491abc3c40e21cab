"""A module that ends the process which imports it, as a kill would."""

import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
