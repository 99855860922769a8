"""What every test may rely on."""

from __future__ import annotations

import signal

# a shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
