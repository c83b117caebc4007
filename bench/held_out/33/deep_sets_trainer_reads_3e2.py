"""A DeepSets net says how many different numbers a set holds; a small Trainer class reads its settings from a text of `key = value` lines. AdamW.
FAULT from step 0: the text says `lr = 3e2`, where 3e-4 had become 3e-2 and then lost its sign: the rate is 300.
Without Rangewatch: loss 1.8 at step 0; 8e15 at step 1, still 24000 at step 140.
Cause: learning_rate. Step: 0. Right: learning rate. Wrong: GradScaler, attention mask, labels."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 5], "place": None, "rank": None,
          "right": "(?i)learning.rate|\\blr\\b", "wrong": ["GradScaler", "attention mask", "[Ll]abels", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3319); torch.set_num_threads(1)
SETTINGS = """
lr = 3e2
weight_decay = 1e-4
steps = 160
batch = 48
"""


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Embedding(12, 24), nn.Linear(24, 48), nn.CELU(), nn.Linear(48, 48))
        self.all = nn.Sequential(nn.CELU(), nn.Linear(48, 48), nn.CELU(), nn.Linear(48, 6))

    def forward(self, x):
        return self.all(self.each(x).amax(1))


class Trainer:
    def __init__(self, model, text, sample):
        self.cfg = {k.strip(): float(v) for k, v in (line.split("=") for line in text.strip().splitlines())}
        self.model, self.sample = model, sample
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=self.cfg["lr"], weight_decay=self.cfg["weight_decay"])
        self.handle = rangewatch.attach(model, self.optimizer)

    def training_step(self):
        x, y = self.sample(int(self.cfg["batch"]))
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self):
        for step in range(int(self.cfg["steps"])):
            loss = self.training_step()
            if step % 20 == 0 or step < 4:
                print(step, loss, flush=True)
            self.handle.log(loss=loss)
        self.handle.detach()


def sets(n):
    kinds = torch.randint(1, 7, (n,))
    pool = torch.rand(n, 12).argsort(1)
    pick = (torch.rand(n, 8) * kinds[:, None]).long()
    x = pool.gather(1, pick)
    return x, F.one_hot(x, 12).amax(1).sum(1).clamp(1, 6) - 1


Trainer(DeepSets(), SETTINGS, sets).fit()
