"""A GRU that counts odd digits modulo 3. HEALTHY: the rows become longer at steps 65, 130 and 195 by a plan, and the loss leaps each time.
Seen: loss 1.08 to 0.0019 at step 64, 6.5 at step 65, 0.22 at step 129, 1.27 at step 130, 0.084 at step 194, 0.13 at step 195, 0.012 at the end."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1533); torch.set_num_threads(1)


class Adder(nn.Module):
    """Counts the odd ones of a row of digits, modulo 3; the rows become longer by a plan."""
    def __init__(self):
        super().__init__()
        self.digit, self.read, self.out = nn.Embedding(10, 16), nn.GRU(16, 48, batch_first=True), nn.Linear(48, 3)

    def forward(self, x):
        return self.out(self.read(self.digit(x))[0][:, -1])


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    length = 2 + step // 65 * 2  # 2, 4, 6 and 8 digits
    x = torch.randint(0, 10, (96, length))
    y = (x % 2).sum(1) % 3
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step in (64, 65, 129, 130, 194, 195, 259):
        print(step, loss.item(), "length", length, flush=True)
    handle.log(loss=loss.item())
handle.detach()
