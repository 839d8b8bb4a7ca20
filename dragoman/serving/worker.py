"""`python -m dragoman.serving.worker`: a worker process of a server with several; the supervisor starts it."""

from __future__ import annotations

import sys

from dragoman.serving.server import worker_main

if __name__ == "__main__":
    sys.exit(worker_main(sys.argv[1:]))
