"""A GRU that predicts the creep of a bridge in metres (2e-4 and less) in float16 autocast. FAULT from step 0 on: no loss scale is used; the gradient of the mean
squared error divided by the batch is below 6e-8, the smallest number of float16, and becomes 0 on its way through the net.
Without Rangewatch: all gradients below the last layer are exactly 0; loss 5.8e-9 to 4.0e-9 (the last layer alone); 1.6e-10 in float32.
Cause: loss_scale or backward_arithmetic (underflow); also no_gradient. Step: from 0 on, a state. Right: GradScaler / underflow / scale of targets / bfloat16.
Wrong: attention mask, lower the learning rate."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 199], "place": None, "rank": 0,
          "right": "(?i)scal|underflow|bfloat16|float16", "wrong": ["attention mask", "[Ll]ower the learning rate"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2410); torch.set_num_threads(1)


class Creep(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(5, 32)
        self.cell = nn.GRUCell(32, 48)
        self.hidden = nn.Linear(48, 48)
        self.end = nn.Linear(48, 3)
        nn.init.normal_(self.end.weight, std=2e-5); nn.init.zeros_(self.end.bias)

    def forward(self, x):
        h = x.new_zeros(len(x), 48)
        for t in range(x.shape[1]):
            h = self.cell(torch.tanh(self.lift(x[:, t])), h)
        return self.end(torch.tanh(self.hidden(h)))


load = torch.randn(5, 3)


def bridges(n):
    x = torch.randn(n, 8, 5)
    return x, 1e-4 * torch.tanh(x.mean(1) * 2 @ load)


model = Creep()
body = [p for n, p in model.named_parameters() if not n.startswith("end")]
optimizer = torch.optim.Adam([{"params": body, "lr": 2e-3}, {"params": model.end.parameters(), "lr": 1e-6}], eps=1e-18)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = bridges(64)
    with torch.autocast("cpu", torch.float16):
        guess = model(x)
    loss = ((guess.float() - y) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 199:
        zero = {n: round((p.grad == 0).float().mean().item(), 3) for n, p in model.named_parameters() if "weight" in n}
        print(step, loss.item(), "of the mean square", (y ** 2).mean().item(), "zero gradients", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
