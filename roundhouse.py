"""What `roundhouse` runs, here and in a wheel, where everything stands below this name."""


def main() -> int:
    """The command line; its exit status."""
    from gateway.cli import main as command  # noqa: PLC0415 - the import is the program's start

    return command()


if __name__ == "__main__":
    raise SystemExit(main())
