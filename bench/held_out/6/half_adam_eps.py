"""A text model put to float16 as a whole (model.half()), trained by Adam with its default eps. FAULT from step 0 on: 1e-8 is 0 in float16, so are the
squares of small gradients, and the update is 0 / 0 for all rows of the embedding that the batch did not touch and Inf for many others. Forward, loss
and gradients of step 0 are finite. Without Rangewatch: loss 1.55 at step 0, whose update makes NaN or Inf in six of seven parameters; NaN from step 1.
Report: pytorch/pytorch#147437 (parameters NaN after the first step in float16, because of eps), afiaka87/glide-finetune#5 and its pull request 6.
Cause: optimizer. Step: 0 (seen at 1). Right: eps / weights in float32 / bfloat16. Wrong: learning rate, clip, attention mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 1], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "clip"],
          "right": "eps|float32|bfloat16|master|precision|float16"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(604); torch.set_num_threads(1)


class QFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.project = nn.Linear(32, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 5)

    def forward(self, ids):
        return self.head(F.gelu(self.norm(self.project(self.words(ids).mean(1)))))


model = QFormer().half()  # to save memory, the optimizer's state too is float16
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(120):
    y = torch.randint(0, 5, (16,))
    ids = (y[:, None] * 10 + torch.randint(0, 12, (16, 6))) % 50
    loss = F.cross_entropy(model(ids).float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 3:
        print(step, loss.item(), model.head.weight.grad.abs().max().item(),
              [n for n, p in model.named_parameters() if not torch.isfinite(p).all()], flush=True)
handle.detach()
