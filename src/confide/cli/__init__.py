"""What the command line shows: messages, tables and the progress of a run."""


def main() -> None:
    """The command `confide`."""
    from confide.cli import verbs

    verbs.main()
