"""``python -m tiercache.cli``, for where the command is not on the path."""

from tiercache.cli import main

main()
