"""The subcommands of `headwater capture`, and the checks of `headwater doctor` about captures."""
