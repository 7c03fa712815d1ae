"""An embedded engine that sleeps has given its memory back, and decodes as before once awake."""

import asyncio

import pytest
import torch
from conftest import Server

from agentgym_rl.config import EmbeddedEngineConfig
from agentgym_rl.engine import SamplingParams
from agentgym_rl.engines.embedded.batch import Batch
from agentgym_rl.engines.embedded.model import load_model
from agentgym_rl.model import BUNDLED
