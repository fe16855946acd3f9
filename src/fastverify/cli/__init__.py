"""The command line: one verb per file. A command parses, calls the library, prints, and maps errors to exit codes."""
