import sys

from workers.gateway.main import main

if __name__ == "__main__":
    sys.exit(main())
