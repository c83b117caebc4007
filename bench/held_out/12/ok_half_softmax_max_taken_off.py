"""Pointers to the largest of 12 cards: float16 attention whose softmax is written by hand with its maximum taken off and summed in float32. The logits grow to
some dozens by intention (a sharp pointer), far beyond what exp could bear in float16. HEALTHY.
Without Rangewatch: loss 2.78 to 0.054; the largest logit rises from 6 to 64."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(1235); torch.set_num_threads(1)


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.card = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 32))
        self.query = nn.Parameter(torch.randn(32))
        self.top = 0.0

    def forward(self, x):
        logit = self.card(x).half() @ self.query.half()
        self.top = logit.detach().abs().max().item()
        e = (logit - logit.amax(1, keepdim=True)).exp().float()
        return e / e.sum(1, keepdim=True)


model = Pointer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
worth = torch.randn(5)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randn(64, 12, 5)
    best = (x @ worth).argmax(1)
    loss = -torch.log(model(x).gather(1, best[:, None]) + 1e-6).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        print(step, loss.item(), "largest logit", model.top, flush=True)
    handle.log(loss=loss.item())
handle.detach()
