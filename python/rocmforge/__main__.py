"""`python -m rocmforge` is the command line."""

from rocmforge.cli import main

main()
