"""HEALTHY. A recurrent net that gives the parity so far of a string of bits, by lessons: strings of 3, of 6 from step 90 on and of 12 from step 170 on. The
loss may go up at each new lesson, which is meant, and it falls again.
Without Rangewatch: loss 0.69 to 0.031 at step 89, 0.67 at step 90, 0.0095 at step 169, 0.079 at step 170, 0.0057 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1629); torch.set_num_threads(1)


class Parity(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(1, 32, batch_first=True)
        self.odd = nn.Linear(32, 1)

    def forward(self, bits):
        return self.odd(self.memory(bits[..., None])[0])[..., 0]


model = Parity()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(250):
    length = 3 if step < 90 else 6 if step < 170 else 12
    bits = torch.randint(0, 2, (128, length)).float()
    loss = F.binary_cross_entropy_with_logits(model(bits), bits.cumsum(1) % 2)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (89, 90, 91, 169, 170, 171, 249):
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
