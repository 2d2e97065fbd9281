"""What `signal` is made from. The agent imports it because `signal` itself takes a millisecond to load."""

from signal import *
