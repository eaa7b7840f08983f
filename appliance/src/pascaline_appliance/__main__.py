"""`python -m pascaline_appliance`: the same as the `pascaline-appliance` command."""

from pascaline_appliance.cli import main

main()
