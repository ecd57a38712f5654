"""`python -m confide` is `confide`."""

from confide.cli.verbs import main

if __name__ == "__main__":
    main()
