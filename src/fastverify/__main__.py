"""`python -m fastverify`: the same as the `fastverify` command."""

from fastverify.cli.main import main

if __name__ == "__main__":
    main()
