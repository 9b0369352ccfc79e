"""`python -m kvpact.cli`, for an installation whose console script is not on the path."""

from kvpact.cli.main import main

main()
