"""A message-passing net (sum over neighbours) says whether two papers are of one field by the dot product of their embeddings, under float16 autocast (Adam, no scaler). FAULT at step 130: graphs
with a much-cited hub come in; its embedding is so long that the dot product passes 65504, the logit is inf in half precision and the loss inf - inf.
Without Rangewatch: loss 13 to 0.0015 at step 129, NaN from step 130 on, largest logit inf.
Cause: forward_arithmetic (overflow of float16). Step: 130. Right: overflow / float32 / bfloat16 / half. Wrong: mask, raise the loss scale."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)overflow|float32|bfloat16|half|fp16|float16|65504|16 bit|precision", "wrong": ["attention mask", "(?i)raise the (loss )?scale"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(3414); torch.set_num_threads(1)
N, F, C = 120, 16, 4
field = torch.randn(C, F)


def graph(hub):
    y = torch.randint(0, C, (N,))
    x = 0.5 * field[y] + 0.6 * torch.randn(N, F)
    dst = torch.arange(N).repeat_interleave(3)
    src = torch.stack([(y == y[i]).float().multinomial(3) for i in range(N)]).flatten()
    if hub:
        more = (y == y[0]).nonzero()[:, 0].repeat(40)
        src, dst = torch.cat([src, more]), torch.cat([dst, torch.zeros_like(more)])
    pairs = torch.stack([torch.arange(N).repeat(2), torch.randint(0, N, (2 * N,))])
    return x, src, dst, pairs, (y[pairs[0]] == y[pairs[1]]).float()


class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.msg = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, src, dst):
        m = self.msg(x)
        total = torch.zeros(len(x), m.shape[1], dtype=m.dtype).index_add(0, dst, m[src])
        return self.own(x) + total


class Links(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = Conv(F, 32), Conv(32, 16)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x, src, dst, pairs):
        h = self.c2(nn.functional.leaky_relu(self.c1(x, src, dst), 0.1), src, dst)
        return (h[pairs[0]] * h[pairs[1]]).sum(1) + self.bias.to(h.dtype)


model = Links()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(190):
    x, src, dst, pairs, same = graph(step >= 130)
    with torch.autocast("cpu", dtype=torch.float16):
        logit = model(x, src, dst, pairs)
    loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), same)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133 or step == 189:
        print(step, loss.item(), "largest logit", logit.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
