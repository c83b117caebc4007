"""A causal transformer with ALiBi (slopes times distance and -inf above the diagonal in one mask, as it should be) learns sums of neighbouring letters by SGD with momentum. FAULT at step 130: the schedule's table of stages has 4.0 for 0.04
at its second stage: the gradients explode and the loss jumps to many times the chance level.
Without Rangewatch: loss 2.42 to 0.32 at step 129; 0.33 at 130, 9.5 at 131, 7253 at 132, 3.6e13 at 133, NaN at 134.
Cause: learning_rate. Step: 130. Right: rate / schedule / clip. Wrong: the mask, input data, GradScaler."""
EXPECT = {"cause": ["learning_rate"], "step": [129, 135], "place": None, "rank": None,
          "right": "(?i)rate|lr|schedul|clip", "wrong": ["(?i)fully masked|attention mask", "GradScaler"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(119); torch.set_num_threads(1)
T, V, W, H = 12, 10, 32, 4
slopes = torch.tensor([2.0 ** -(2 * k + 1) for k in range(H)])
distance = torch.arange(T)[None] - torch.arange(T)[:, None]
alibi = (slopes[:, None, None] * distance).masked_fill(distance > 0, float("-inf"))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(W), nn.LayerNorm(W)
        self.qkv, self.o = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.mlp = nn.Sequential(nn.Linear(W, 64), nn.GELU(), nn.Linear(64, W))

    def forward(self, h):
        q, k, v = self.qkv(self.n1(h)).view(-1, T, 3, H, W // H).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) / (W // H) ** 0.5 + alibi).softmax(-1)
        h = h + self.o((a @ v).transpose(1, 2).flatten(2))
        return h + self.mlp(self.n2(h))


net = nn.Sequential(nn.Embedding(V, W), Layer(), Layer(), nn.Linear(W, V))
optimizer = torch.optim.SGD(net.parameters(), lr=0.04, momentum=0.9)
stages = {0: 0.04, 130: 4.0}
handle = rangewatch.attach(net, optimizer)
for step in range(200):
    for group in optimizer.param_groups:
        group["lr"] = stages.get(step, group["lr"])
    x = torch.randint(0, V, (48, T))
    y = (x + x.roll(1, 1)) % V
    y[:, 0] = x[:, 0]
    y = torch.where(x < 7, x, y)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 136:
        norm = sum(p.grad.square().sum() for p in net.parameters()).sqrt().item()
        print(step, loss.item(), "norm", norm, flush=True)
    handle.log(loss=loss.item())
handle.detach()
