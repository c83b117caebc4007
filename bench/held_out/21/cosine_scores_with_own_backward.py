"""A two-tower net that matches questions to answers by cosine, trained with InfoNCE; the projection onto the sphere is an autograd.Function with a
backward by hand. FAULT at step 130: a blank question (a zero vector; the question tower has no biases) has a norm of 0. The forward guards it with a
clamp, the backward divides by the norm as it is: 0 / 0 is NaN in the gradient, the loss of that step is finite.
Without Rangewatch: loss 5.07 to 0.08 at step 129, 0.23 at step 130 (finite), NaN from step 131 on.
Cause: backward_arithmetic (or the blank question: data). Step: 130. Right: backward / divide / norm / eps / zero. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "data", "eps"], "step": [129, 132], "place": None, "rank": 0,
          "right": "(?i)backward|divi|norm|eps|zero|gradient", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2105)
torch.set_num_threads(1)


class OntoSphere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        norm = v.norm(dim=1, keepdim=True)
        unit = v / norm.clamp(min=1e-8)
        ctx.save_for_backward(unit, norm)
        return unit

    @staticmethod
    def backward(ctx, grad):
        unit, norm = ctx.saved_tensors
        return (grad - unit * (unit * grad).sum(1, keepdim=True)) / norm


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.question = nn.Sequential(nn.Linear(40, 96, bias=False), nn.Tanh(), nn.Linear(96, 24, bias=False))
        self.answer = nn.Sequential(nn.Linear(30, 96), nn.Tanh(), nn.Linear(96, 24))

    def forward(self, q, a):
        return OntoSphere.apply(self.question(q)) @ OntoSphere.apply(self.answer(a)).T / 0.1


to_q, to_a = torch.randn(10, 40), torch.randn(10, 30)
towers = Towers()
opt = torch.optim.RMSprop(towers.parameters(), lr=1e-3)
handle = rangewatch.attach(towers, opt)
for step in range(190):
    meaning = torch.randn(40, 10)
    q, a = meaning @ to_q / 3 + 0.2 * torch.randn(40, 40), meaning @ to_a / 3 + 0.2 * torch.randn(40, 30)
    if step == 130:
        q[7] = 0.0
    score = towers(q, a)
    loss = (F.cross_entropy(score, torch.arange(40)) + F.cross_entropy(score.T, torch.arange(40))) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or 128 < step < 134 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
