"""A one-layer transformer with padded sentences under `torch.autocast("cpu", float16)` and `GradScaler("cpu", init_scale=2**30)`. HEALTHY: the scale is begun far too high on purpose, so the first steps' gradients are inf and skipped while the scale
is halved; from then on it trains. Padding is masked with -inf, no row is masked whole.
Without Rangewatch: loss 1.66 to 0.009; the scale falls from 2^30 to 2^18 in the first 20 steps."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(132); torch.set_num_threads(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(40, 32), nn.Parameter(0.02 * torch.randn(10, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x, padding):
        h = self.layer(self.words(x) + self.place, src_key_padding_mask=padding)
        return self.head(h.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True))


net = Reader()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30)
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    length = torch.randint(3, 11, (48, 1))
    padding = torch.arange(10) >= length
    x = torch.randint(1, 40, (48, 10)).masked_fill(padding, 0)
    y = x[:, 0] % 5
    x[:, 1] = x[:, 0]
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x, padding)
    loss = F.cross_entropy(out.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 199:
        print(step, loss.item(), "scale", scaler.get_scale(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
