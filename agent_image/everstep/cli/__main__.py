"""`python -m everstep.cli` is `everstep`."""

from everstep.cli import main

if __name__ == "__main__":
    main()
