"""A Trainer class that fits a text-like tagger in fp16 with a GradScaler. FAULT from the start: the gradients are clipped to a norm of 1 while they still carry
the loss scale of 65536 (no unscale_ before): what the optimizer gets is some 1e-5 long and SGD stands still.
Without Rangewatch: loss 1.616, 1.62 to 1.65 to the end (log 5 is 1.609); the scale stays at 65536.
Cause: clip or loss_scale. Step: any. Right: unscale_ / clip. Wrong: attention mask, all_reduce."""
EXPECT = {"cause": ["clip", "loss_scale"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)unscale|clip|max_norm", "wrong": ["attention mask", "all_?reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2912); torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 24)
        self.hidden = nn.Linear(72, 96)
        self.tags = nn.Linear(96, 5)

    def forward(self, ids):
        e = self.emb(ids)
        ctx = torch.cat((e[:, :-2], e[:, 1:-1], e[:, 2:]), -1)
        return self.tags(torch.relu(self.hidden(ctx)))


class Trainer:
    def __init__(self, model, max_steps, max_grad_norm=1.0):
        self.model, self.max_steps, self.max_grad_norm = model, max_steps, max_grad_norm
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)
        self.handle = rangewatch.attach(model, self.optimizer, scaler=self.scaler)
        self.kind = torch.randint(0, 5, (60,))

    def batch(self):
        ids = torch.randint(0, 60, (32, 18))
        y = torch.where(ids[:, :-2] < 20, (self.kind[ids[:, 1:-1]] + 1) % 5, self.kind[ids[:, 1:-1]])
        return ids, y

    def training_step(self):
        ids, y = self.batch()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.model(ids)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def train(self):
        for step in range(self.max_steps):
            loss = self.training_step()
            if step % 20 == 0 or step == self.max_steps - 1:
                print(step, loss, "scale", self.scaler.get_scale(), flush=True)
            self.handle.log(loss=loss)
        self.handle.detach()


Trainer(Tagger(), 200).train()
