"""`python -m rtmb`: the `rtmb` command."""

from rtmb.cli import main

if __name__ == "__main__":
    main()
