"""A net on graphs (messages along bonds, sum over neighbours) estimates a property of small molecules; the messages are brought to length 1 by an autograd Function of our
own. FAULT at step 136: a molecule comes that has an atom without bonds: its message is the zero vector. The forward guards the length with clamp, the backward
divides by the bare length: 0 / 0, NaN in all gradients from there down.
Without Rangewatch: loss 1.08 to 0.55 at step 135, 0.53 at step 136 (the forward is well), NaN from step 137 on.
Causes: backward_arithmetic, eps. Right: the division in the backward / an epsilon / the own autograd function. Wrong: the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["backward_arithmetic", "eps"], "step": [135, 137], "place": None, "rank": 0,
          "right": "(?i)backward|divi|eps|autograd|norm|zero", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2223); torch.set_num_threads(1)


class Direction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        length = v.norm(dim=-1, keepdim=True)
        u = v / length.clamp(min=1e-6)
        ctx.save_for_backward(u, length)
        return u

    @staticmethod
    def backward(ctx, g):
        u, length = ctx.saved_tensors
        return (g - u * (g * u).sum(-1, keepdim=True)) / length


class Molecules(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom = nn.Embedding(5, 32)
        self.message = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(2))
        self.update = nn.ModuleList(nn.Linear(64, 32) for _ in range(2))
        self.read = nn.Linear(32, 1)

    def forward(self, kind, bonds):
        h = self.atom(kind)
        for message, update in zip(self.message, self.update, strict=True):
            m = Direction.apply(bonds @ message(h))
            h = h + torch.tanh(update(torch.cat((h, m), 2)))
        return self.read(h.mean(1))[:, 0]


model = Molecules()
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
mass = torch.tensor([1.0, -0.5, 0.3, 0.8, -1.2])
chain = torch.diag(torch.ones(8), 1) + torch.diag(torch.ones(8), -1)
for step in range(190):
    kind = torch.randint(0, 5, (48, 9))
    extra = (torch.rand(48, 9, 9) < 0.08).float().triu(1)
    bonds = (chain + extra + extra.transpose(1, 2)).clamp(max=1)
    if step == 136:
        bonds[20, 8], bonds[20, :, 8] = 0.0, 0.0
    y = 3 * (mass[kind] * (bonds @ mass[kind][..., None])[..., 0].sign()).mean(1)
    loss = (model(kind, bonds) - y).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or step in (135, 136, 137, 189):
        print(step, loss.item(), flush=True)
handle.detach()
