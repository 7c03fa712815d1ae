"""`python -m agentgym_rl` is `arl`."""

from agentgym_rl.cli.main import main

if __name__ == "__main__":
    main()
