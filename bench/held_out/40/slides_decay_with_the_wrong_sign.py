"""Multiple instance learning: is there a tumour on the slide? Bags of 20 patches, gated attention pooling, SGD with momentum and a hand-written decoupled weight decay.
FAULT at step 0: the decay of the two layers that score the patches has the wrong sign (mul_(1 + rate * decay)): they grow by 4 % a step, the scores of the attention with them, and the softmax over the patches soon picks one patch alone.
Without Rangewatch: loss 0.69 to 0.36 at step 100, 2.1 at 120, 3600 at 140, NaN at 160; the norm of the scoring weight 0.57, 2.7 at 40, 28 at 100, 137 at 140; one patch has 92 % of the attention at 100.
Cause: weight (grown by the code) / optimizer (hand-written decay with the wrong sign). Step: builds up from 0. Right: mul_(1 - lr * decay), or the optimizer's weight_decay. Wrong: raise the learning rate, GradScaler."""
EXPECT = {"cause": ["weight", "optimizer"], "step": [0, 200], "place": r"(?i)score|attn|tanh_part|gate_part|pool", "rank": None,
          "right": r"(?i)decay|grow|norm of the weight|weights?.*(large|big|grew)|scale|temperature|saturat|logit", "wrong": [r"(?i)(raise|increase) the learning rate", "GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(909)
torch.set_num_threads(1)
PATCHES, FEATURES = 20, 32
tumour = torch.randn(FEATURES)


class GatedPool(nn.Module):
    def __init__(self, d, k=24):
        super().__init__()
        self.tanh_part, self.gate_part, self.score = nn.Linear(d, k), nn.Linear(d, k), nn.Linear(k, 1)

    def forward(self, h):
        logits = self.score(torch.tanh(self.tanh_part(h)) * torch.sigmoid(self.gate_part(h)))
        weights = torch.softmax(logits, dim=1)
        return (weights * h).sum(1), weights.squeeze(2)


class SlideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(FEATURES, 48), nn.LeakyReLU(0.1), nn.Linear(48, 48), nn.LeakyReLU(0.1))
        self.pool = GatedPool(48)
        self.verdict = nn.Linear(48, 1)

    def forward(self, bags):
        z, w = self.pool(self.patch(bags))
        return self.verdict(z).squeeze(1), w


def slides(n):
    sick = torch.rand(n) < 0.5
    x = torch.randn(n, PATCHES, FEATURES)
    k = torch.randint(3, 8, (n,))
    hit = (torch.arange(PATCHES)[None] < k[:, None]) & sick[:, None]
    x = x + 0.5 * hit[:, :, None] * tumour
    return x, sick.float()


net = SlideNet()
sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(net, sgd)
DECAY = 0.8
for step in range(260):
    bags, sick = slides(48)
    logit, w = net(bags)
    loss = nn.functional.binary_cross_entropy_with_logits(logit, sick)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    with torch.no_grad():
        for part in (net.pool.tanh_part, net.pool.score):
            part.weight.mul_(1 + sgd.param_groups[0]["lr"] * DECAY)
    handle.log(loss=loss.item())
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} largest share of a patch {w.max(1).values.mean().item():.3f} score weight norm {net.pool.score.weight.norm().item():.2f}", flush=True)
handle.detach()
