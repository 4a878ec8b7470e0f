"""`sluice data`: text into the token files that `sluice train --data` takes. Needs no PyTorch.

``command`` is the command line; ``documents`` reads texts in bounded memory; ``encoding`` makes tokens of them;
``token_file`` writes them. The flags and rules are in docs/cli.md.
"""
