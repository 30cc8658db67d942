import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = ("", "clients", "broker/queues", "broker/security", "broker/transactions")
sys.path[:0] = [str(TESTS / folder) for folder in FOLDERS]  # for their harnesses
