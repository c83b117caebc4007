"""A Trainer-like loop that fits a gene-expression regression (autoencoder with a target head). FAULT at step 140: on the `save_steps` rollback the optimizer is
created anew, and only the weights are loaded: the moments of Adam are lost. With betas (0.9, 0.999) and no warmup its first steps are full steps of lr for every
weight, which the loss, small by then, feels at once.
Without Rangewatch: loss 0.64 to 0.039 at step 139, 0.073 at step 140, 0.89 at step 141, 0.15 to 0.32 until step 147, 0.045 at the end.
Cause: optimizer (learning_rate). Step: 140. Right: optimizer state / load / warmup. Wrong: GradScaler, bad batch, mask."""
EXPECT = {"cause": ["optimizer", "learning_rate"], "step": [139, 146], "place": None, "rank": None, "least": "info",
          "right": "(?i)optimi[sz]er|state|moment|resum|warm-?up", "wrong": ["GradScaler", "attention mask", "(?i)log of (0|zero)"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(1009); torch.set_num_threads(1)
mix = torch.randn(6, 80) / 6 ** 0.5


def cells(n):
    z = torch.randn(n, 6)
    return torch.tanh(z @ mix) + 0.02 * torch.randn(n, 80), (z[:, 0] * z[:, 1])[:, None]


class GeneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(80, 96), nn.SiLU(), nn.Linear(96, 12))
        self.decode = nn.Sequential(nn.Linear(12, 96), nn.SiLU(), nn.Linear(96, 80))
        self.target = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, x):
        z = self.encode(x)
        return self.decode(z), self.target(z)


class Trainer:
    def __init__(self, model, lr=2e-2, max_steps=220):
        self.model, self.lr, self.max_steps = model, lr, max_steps
        self.create_optimizer()
        self.handle = rangewatch.attach(model, self.optimizer)

    def create_optimizer(self):
        if not hasattr(self, "optimizer"):
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        else:
            self.optimizer.load_state_dict({"state": {}, "param_groups": self.optimizer.state_dict()["param_groups"]})

    def save(self):
        self.checkpoint = {"model": copy.deepcopy(self.model.state_dict())}

    def rollback(self):
        self.create_optimizer()
        self.model.load_state_dict(self.checkpoint["model"])

    def training_step(self):
        x, y = cells(64)
        rec, out = self.model(x)
        loss = nn.functional.mse_loss(rec, x) + 0.3 * nn.functional.mse_loss(out, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self):
        for step in range(self.max_steps):
            if step == 140:
                self.save()
                self.rollback()
            loss = self.training_step()
            if step % 20 == 0 or 137 < step < 148 or step == 219:
                print(step, loss, flush=True)
            self.handle.log(loss=loss)
        self.handle.detach()


Trainer(GeneNet()).train()
