"""`python -m agentgym_rl` is `arl`."""

from .cli import main

if __name__ == "__main__":
    main()
