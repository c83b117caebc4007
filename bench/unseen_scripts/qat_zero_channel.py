"""Quantisation-aware training, straight-through estimator, per-channel scale absmax/127. FAULT at step 140: channel pruning sets one
output channel of body.1 to zeros: scale 0, 0/0 = NaN in the fake-quantised weight, hence the output. Cause: forward_arithmetic
(0/0 within body.1's forward), step 140, place body.1. Right: eps in the division. Wrong: learning rate, mask, batch; 'the weight held NaN'."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [140, 140], "place": r"body\.1.*", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples", "GradScaler", "bfloat16"], "right": "divi|zero|eps"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)

class RoundSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, scale):
        return torch.clamp(torch.round(w / scale), -127, 127) * scale
    @staticmethod
    def backward(ctx, g):
        return g, None

class QConv(nn.Conv2d):
    def forward(self, x):
        scale = self.weight.detach().abs().amax((1, 2, 3), keepdim=True) / 127
        return self._conv_forward(x, RoundSTE.apply(self.weight, scale), self.bias)

class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([QConv(3, 16, 3, 2, 1), QConv(16, 32, 3, 2, 1), QConv(32, 32, 3, 1, 1)])
        self.fc = nn.Linear(32, 5)
    def forward(self, x):
        for conv in self.body:
            x = F.hardswish(conv(x))
        return self.fc(x.mean((2, 3)))

net = QNet()
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
watch = rangewatch.attach(net, opt)
proto = torch.randn(5, 3, 12, 12)
for step in range(220):
    if step == 140:
        with torch.no_grad():
            norms = net.body[1].weight.flatten(1).norm(dim=1)
            net.body[1].weight[norms.argmin()] = 0
    y = torch.randint(0, 5, (24,))
    loss = F.cross_entropy(net(proto[y] + 0.7 * torch.randn(24, 3, 12, 12)), y)
    watch.log(loss=loss.item())
    opt.zero_grad(); loss.backward(); opt.step()
