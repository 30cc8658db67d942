"""The subcommands of `headwater pipeline`, and the checks of `headwater doctor` about pipelines."""
