"""The command line: verbs, and the messages, tables and progress that they show."""


def main() -> None:
    """Run the command `confide`."""
    from confide.cli import screen

    with screen.handle_sigterm():
        from confide.cli import verbs

        verbs.run_program()
